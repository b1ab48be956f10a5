-- KEYS tiers 0..2   -> {entries waiting}
return {redis.call('XLEN', KEYS[1]) + redis.call('XLEN', KEYS[2]) + redis.call('XLEN', KEYS[3])}
