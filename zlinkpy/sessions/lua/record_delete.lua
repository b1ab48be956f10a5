-- KEYS record, lease   ARGV fence, check lease   -> {'ok' | 'absent' | 'fenced'}
local row = redis.call('HMGET', KEYS[1], 'sid', 'fence')
if not row[1] then return {'absent'} end
local fence = tonumber(row[2] or '0')
if not fence then return redis.error_reply(CORRUPT) end
if tonumber(ARGV[1]) < fence or lease_differs(ARGV[2], KEYS[2], ARGV[1]) then return {'fenced'} end
redis.call('DEL', KEYS[1])
return {'ok'}
