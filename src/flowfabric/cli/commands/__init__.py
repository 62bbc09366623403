"""One module per group of commands; `cli/command_table.py` names the function of each command."""
