-- KEYS entry, live   ARGV key, holder, allow unheld, result, primary ttl ms   -> {'applied' | 'refused' | 'absent'}
redis.call('ZSCORE', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'st', 'h')
if not row[1] then return {'absent'} end
local mine = row[2] == ARGV[2] or (ARGV[3] == '1' and not row[2])
if row[1] ~= 'I' or not mine then return {'refused'} end
redis.call('HDEL', KEYS[1], 'h')
redis.call('HSET', KEYS[1], 'st', 'D', 'r', ARGV[4], 't', digits(millis()), 'ttl', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZREM', KEYS[2], ARGV[1])
return {'applied'}
