"""Programs to be measured against: what an experienced user would write on pyzmq alone. Each prints one JSON line."""
