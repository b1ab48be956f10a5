-- KEYS record, lease   ARGV turn, fence, check lease, attrs, [state]   -> {'ok' | 'absent' | 'fenced'}
local row = redis.call('HMGET', KEYS[1], 'sid', 'fence', 'last', 'ver')
if not row[1] then return {'absent'} end
local fence, version = tonumber(row[2] or '0'), tonumber(row[4] or '0')
if not fence or not version then return redis.error_reply(CORRUPT) end
if row[3] == ARGV[1] and row[2] == ARGV[2] then return {'ok'} end
if tonumber(ARGV[2]) < fence or lease_differs(ARGV[3], KEYS[2], ARGV[2]) then return {'fenced'} end
redis.call('HSET', KEYS[1], 'fence', ARGV[2], 'last', ARGV[1], 'attrs', ARGV[4], 'ver', digits(version + 1))
if ARGV[5] then redis.call('HSET', KEYS[1], 'state', ARGV[5]) else redis.call('HDEL', KEYS[1], 'state') end
return {'ok'}
