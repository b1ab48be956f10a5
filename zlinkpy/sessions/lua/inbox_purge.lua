-- KEYS tiers 0..2, index   ARGV session   -> the idempotency keys of what was removed, as often as they occur
local tiers = {KEYS[1], KEYS[2], KEYS[3]}
redis.call('ZSCORE', KEYS[4], ARGV[1])
for _, tier in ipairs(tiers) do redis.call('XLEN', tier) end
local keys = {}
for _, tier in ipairs(tiers) do
  local from, any = '-', false
  while true do
    local page = redis.call('XRANGE', tier, from, '+', 'COUNT', 64)
    if #page == 0 then break end
    any = true
    for _, entry in ipairs(page) do
      local key = field(entry[2], 'k')
      if key then keys[#keys + 1] = key end
    end
    from = '(' .. page[#page][1]
  end
  if any then
    redis.call('XTRIM', tier, 'MAXLEN', 0)
    rest_if_empty(tier)
  end
end
redis.call('ZREM', KEYS[4], ARGV[1])
return keys
