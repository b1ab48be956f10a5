-- KEYS entry   -> {now, fields…}
return {digits(millis()), redis.call('HGETALL', KEYS[1])}
