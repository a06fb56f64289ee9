"""The datastore drafter (retrieval from a corpus, as REST)."""
