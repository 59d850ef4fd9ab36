"""The tests of streamd, and what they share (`tests.support`)."""
