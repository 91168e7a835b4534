"""The repositories of comparisons: their identities, and what they share."""
