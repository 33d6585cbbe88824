-- What all scripts of the store begin with. KEYS[1] is the live key, KEYS[2] the kept hash.
local FORMAT = 1
local FIELDS = {'format', 'state', 'term', 'claim', 'nonce', 'owner', 'ttl_ms', 'session',
  'session_term', 'until_us', 'note'}

-- Microseconds since 1970 by the server's clock, as text: Lua's numbers end at 2^53, terms do not.
local function clock()
  local now = redis.call('TIME')
  return now[1] .. string.format('%06d', tonumber(now[2]))
end
local NOW = clock()

-- Whole numbers as text.
local function above(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end
local function next_after(a)
  local tail = #a - #string.match(a, '9*$')
  if tail == 0 then return '1' .. string.rep('0', #a) end
  local digit = string.sub(a, tail, tail)
  return string.sub(a, 1, tail - 1) .. tostring(tonumber(digit) + 1) .. string.rep('0', #a - tail)
end

local function known(nonce, from)
  for i = from, #ARGV do
    if ARGV[i] == nonce then return true end
  end
  return false
end

local function until_after(ttl_ms)
  return string.format('%.0f', tonumber(NOW) + tonumber(ttl_ms) * 1000)
end

-- The record as it is (nil: there is none), or the answer to give instead.
local function load_record(live, kept)
  local kind = redis.call('TYPE', kept)['ok']
  if kind == 'none' then return nil, nil end
  if kind ~= 'hash' then return nil, {'damaged'} end
  local values = redis.call('HMGET', kept, unpack(FIELDS))
  local record = {}
  for i, field in ipairs(FIELDS) do record[field] = values[i] or '' end
  local format = tonumber(record.format)
  if not format then return nil, {'damaged'} end
  if format > FORMAT then return nil, {'newer', record.format} end
  if not string.match(record.term, '^%d+$') or not tonumber(record.until_us)
    or not tonumber(record.ttl_ms) then
    return nil, {'damaged'}
  end
  kind = redis.call('TYPE', live)['ok']
  record.live = ''
  if kind == 'string' then record.live = redis.call('GET', live)
  elseif kind ~= 'none' then record.live = 'a ' .. kind end
  record.foreign, record.expiry, record.left, record.expired = '', 'observe', 0, false
  if record.state == 'held' then
    if record.live ~= '' and record.live ~= record.claim then
      -- Somebody's tool wrote the live key.
      record.foreign = record.live
    elseif record.session == '' then
      local left = math.ceil((tonumber(record.until_us) - tonumber(NOW)) / 1000)
      local pttl = redis.call('PTTL', live)
      record.expired = left <= 0 and pttl < 0
      record.expiry = 'store'
      record.left = record.expired and 0 or math.max(left, pttl, 1)
    end
  end
  record.version = redis.sha1hex(table.concat({record.format, record.state, record.term,
    record.claim, record.nonce, record.owner, record.ttl_ms, record.session, record.session_term,
    record.until_us, record.foreign, record.note}, '\0'))
  return record, nil
end

local function answer(word, record)
  if not record then return {word, 'absent'} end
  return {word, record.state, record.term, record.claim, record.nonce, record.owner,
    record.ttl_ms, record.session, record.session_term, record.note, record.version,
    record.expiry, tostring(record.left), record.foreign}
end

local function is_of(record, claim, from)
  return record and record.state == 'held' and record.foreign == '' and record.claim == claim
    and known(record.nonce, from)
end
