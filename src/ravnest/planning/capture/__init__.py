"""The user's model as a flat list of operators (`program.Program`), by `torch.export`."""
