-- ARGV: claim, channel, name, known nonces …
local live, kept = KEYS[1], KEYS[2]
local record, instead = load_record(live, kept)
if instead then return instead end
if not is_of(record, ARGV[1], 4) then return {'refused'} end
redis.call('HSET', kept, 'state', 'released', 'until_us', '0')
redis.call('DEL', live)
redis.call('PUBLISH', ARGV[2], ARGV[3])
return {'yes'}
