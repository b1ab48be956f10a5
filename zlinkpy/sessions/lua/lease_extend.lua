-- KEYS lease   ARGV holder, token, duration ms   -> {1 or 0}
local held = redis.call('HMGET', KEYS[1], 'h', 't')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] or redis.call('PTTL', KEYS[1]) < 0 then return {0} end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1}
