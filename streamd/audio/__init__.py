"""Audio of any form becomes 20 ms frames (`framer`); the last minutes are kept (`ring`)."""
