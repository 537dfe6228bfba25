"""What every operator costs, and tables of what every possible stage would cost."""
