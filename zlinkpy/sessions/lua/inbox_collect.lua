-- KEYS tiers 0..2, index, [batch]   ARGV session, highest tier, entries, bytes, batch memory ms
-- -> {msgpack of {{tier, id, payload}, …}}
local tiers = {KEYS[1], KEYS[2], KEYS[3]}
if KEYS[5] then
  local copy = redis.call('GET', KEYS[5])
  if copy then return {copy} end
end
redis.call('ZSCORE', KEYS[4], ARGV[1])
for _, tier in ipairs(tiers) do redis.call('XLEN', tier) end
local batch, left, bytes = {}, tonumber(ARGV[3]), tonumber(ARGV[4])
for number = 0, tonumber(ARGV[2]) do
  local tier, from, taken = tiers[number + 1], '-', {}
  while left > 0 and bytes > 0 do
    local page = redis.call('XRANGE', tier, from, '+', 'COUNT', math.min(left, 16))
    if #page == 0 then break end
    for _, entry in ipairs(page) do
      if bytes <= 0 then break end
      local payload = field(entry[2], 'p') or ''
      batch[#batch + 1] = {number, entry[1], payload}
      taken[#taken + 1] = entry[1]
      left = left - 1
      bytes = bytes - #payload
    end
    from = '(' .. page[#page][1]
  end
  -- unpack takes no more than the Lua stack holds.
  for at = 1, #taken, 500 do redis.call('XDEL', tier, unpack(taken, at, math.min(at + 499, #taken))) end
  if #taken > 0 then rest_if_empty(tier) end
end
refresh_index(KEYS[4], ARGV[1], tiers)
local copy = cmsgpack.pack(batch)
if KEYS[5] and #batch > 0 then redis.call('SET', KEYS[5], copy, 'PX', ARGV[5]) end
return {copy}
