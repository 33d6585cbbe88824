-- ARGV: claim, term, nonce, ttl_ms, '1' if there is a note, note, known nonces …
local live, kept = KEYS[1], KEYS[2]
local record, instead = load_record(live, kept)
if instead then return instead end
if not is_of(record, ARGV[1], 7) or record.term ~= ARGV[2] then
  return answer('refused', record)
end
-- The live key is gone before its time: an operator deleted it, or memory ran out.
if record.session == '' and record.live == '' and not record.expired then
  return answer('refused', nil)
end
redis.call('HSET', kept, 'nonce', ARGV[3], 'ttl_ms', ARGV[4], 'until_us', until_after(ARGV[4]))
if ARGV[5] == '1' then redis.call('HSET', kept, 'note', ARGV[6]) end
if record.session == '' then redis.call('SET', live, record.claim, 'PX', ARGV[4]) end
return {'yes'}
