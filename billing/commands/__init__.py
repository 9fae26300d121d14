"""The billing commands, one module per group; nothing heavy is loaded before a command runs."""
