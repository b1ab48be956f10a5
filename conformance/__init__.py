"""What an implementation in any language is checked against: the contract list, vectors, and how they are made."""
