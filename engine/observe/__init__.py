"""What happened, told to the host after the transaction that made it so has committed."""
