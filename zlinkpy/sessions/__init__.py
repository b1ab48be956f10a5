"""The session router: the turns of one session run one at a time across a cluster, without sticky routing."""
