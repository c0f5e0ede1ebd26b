"""Keys and tokens as NATS writes them, without knowledge of who may do what.

- the text form of a key, and signatures: nkeys
- signed claims: jwt"""
