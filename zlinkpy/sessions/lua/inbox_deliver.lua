-- KEYS tier, index, [delivery]   ARGV session, tier number, payload, idempotency key, delivery memory ms   -> {inbox id}
if KEYS[3] then
  local known = redis.call('GET', KEYS[3])
  if known then return {known} end
end
redis.call('ZSCORE', KEYS[2], ARGV[1])
local id
if ARGV[4] == '' then
  id = redis.call('XADD', KEYS[1], '*', 'p', ARGV[3])
else
  id = redis.call('XADD', KEYS[1], '*', 'p', ARGV[3], 'k', ARGV[4])
end
redis.call('PERSIST', KEYS[1])
local inbox_id = ARGV[2] .. ':' .. id
if KEYS[3] then redis.call('SET', KEYS[3], inbox_id, 'PX', ARGV[5]) end
redis.call('ZADD', KEYS[2], 'NX', digits(arrived(id)), ARGV[1])
return {inbox_id}
