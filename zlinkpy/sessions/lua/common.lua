-- Shared by the scripts of the session stores. Times are milliseconds of the server's clock.
--
-- A failed script is not undone. Every script therefore reads first whatever it will write, so that a row of the wrong
-- type stops it before its first change.

local CORRUPT = 'ZCORRUPT unreadable session row'

local function micros()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function millis()
  return math.floor(micros() / 1000)
end

-- Digits without an exponent: tostring renders microseconds as 1.8e+15.
local function digits(number)
  return string.format('%.0f', number)
end

-- Does the lease that guards a record belong to somebody else? Only where leases live beside the records.
local function lease_differs(check, lease, token)
  return check == '1' and redis.call('HGET', lease, 't') ~= token
end

-- The arrival of a stream entry in milliseconds.
local function arrived(id)
  return tonumber(string.match(id, '^(%d+)-'))
end

-- Let an emptied tier keep its last id for a minute: were the key deleted, the next message of the same millisecond
-- would get the id of one that was taken out.
local function rest_if_empty(tier)
  if redis.call('XLEN', tier) == 0 then redis.call('PEXPIRE', tier, 60000) end
end

-- Tell the index when the oldest waiting message came, or that none waits.
local function refresh_index(index, sid, tiers)
  local oldest = nil
  for _, tier in ipairs(tiers) do
    local head = redis.call('XRANGE', tier, '-', '+', 'COUNT', 1)[1]
    if head then
      local at = arrived(head[1])
      if oldest == nil or at < oldest then oldest = at end
    end
  end
  if oldest then redis.call('ZADD', index, digits(oldest), sid) else redis.call('ZREM', index, sid) end
end

-- The value behind a name in the flat list of a stream entry's fields.
local function field(fields, name)
  for at = 1, #fields, 2 do
    if fields[at] == name then return fields[at + 1] end
  end
  return nil
end
