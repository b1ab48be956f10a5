-- KEYS record, lease   ARGV session, ref, fence, check lease   -> {0} when fenced, or {1, ref, state, version, attrs}
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if not fence then return redis.error_reply(CORRUPT) end
if tonumber(ARGV[3]) < fence then return {0} end
if ARGV[3] ~= '0' and lease_differs(ARGV[4], KEYS[2], ARGV[3]) then return {0} end
redis.call('HSET', KEYS[1], 'sid', ARGV[1], 'fence', ARGV[3])
if ARGV[2] ~= '' then redis.call('HSETNX', KEYS[1], 'ref', ARGV[2]) end
local row = redis.call('HMGET', KEYS[1], 'ref', 'state', 'ver', 'attrs')
return {1, row[1], row[2], row[3], row[4]}
