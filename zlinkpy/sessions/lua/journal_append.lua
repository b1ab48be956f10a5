-- KEYS journal, current   ARGV turn, ttl ms, count, then number, grade, payload of each, then numbers that go   -> {1}
-- A frame that is there already, or behind a later one, is left out: the first try of an append whose answer was lost.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'stream' then return redis.error_reply(CORRUPT) end
local count = tonumber(ARGV[3])
local at = 4
for _ = 1, count do
  redis.pcall('XADD', KEYS[1], ARGV[at] .. '-0', 'g', ARGV[at + 1], 'p', ARGV[at + 2])
  at = at + 3
end
while at <= #ARGV do
  redis.call('XDEL', KEYS[1], ARGV[at] .. '-0')
  at = at + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {1}
