-- KEYS lease   ARGV holder, token   -> {1 or 0}
local held = redis.call('HMGET', KEYS[1], 'h', 't')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return {0} end
redis.call('DEL', KEYS[1])
return {1}
