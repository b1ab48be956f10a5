-- KEYS tiers 0..2, index   ARGV session, tier number, stream id   -> {1 or 0}
local tiers = {KEYS[1], KEYS[2], KEYS[3]}
redis.call('ZSCORE', KEYS[4], ARGV[1])
for _, tier in ipairs(tiers) do redis.call('XLEN', tier) end
local tier = tiers[tonumber(ARGV[2]) + 1]
if redis.call('XDEL', tier, ARGV[3]) == 0 then return {0} end
rest_if_empty(tier)
refresh_index(KEYS[4], ARGV[1], tiers)
return {1}
