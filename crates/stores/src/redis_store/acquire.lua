-- ARGV: claim, owner, ttl_ms, session, session_term, '1' if there is a note, note, '1' to create,
-- takeover, expected ('', 'absent' or a term), above, channel, name.
local live, kept = KEYS[1], KEYS[2]
local claim, owner, ttl_ms, session, session_term = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local record, instead = load_record(live, kept)
if instead then return instead end

local allowed
if not record then
  allowed = ARGV[8] == '1'
else
  allowed = record.state ~= 'held' or record.expired or ARGV[9] == record.version
end
if ARGV[10] == 'absent' then
  allowed = allowed and not record
elseif ARGV[10] ~= '' then
  allowed = allowed and record and record.term == ARGV[10]
end
if not allowed then return answer('lost', record) end

local term = NOW
if record and not above(term, record.term) then term = next_after(record.term) end
if not above(term, ARGV[11]) then term = next_after(ARGV[11]) end
-- Nothing is above it: whoever repairs the record has to lower it.
if above(term, '18446744073709551615') then return {'damaged'} end
local note = ''
if ARGV[6] == '1' then note = ARGV[7] elseif record then note = record.note end

redis.call('HSET', kept, 'format', FORMAT, 'state', 'held', 'term', term, 'claim', claim,
  'nonce', claim, 'owner', owner, 'ttl_ms', ttl_ms, 'session', session,
  'session_term', session_term, 'until_us', until_after(ttl_ms), 'note', note)
redis.call('PERSIST', kept)
if session == '' then
  redis.call('SET', live, claim, 'PX', ttl_ms)
else
  redis.call('DEL', live)
end
redis.call('PUBLISH', ARGV[12], ARGV[13])
local won = answer('won', record)
table.insert(won, 2, term)
return won
