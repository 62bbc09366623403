"""What the pages of docs/reference are written from: the code's own tables, signatures and docstrings."""
