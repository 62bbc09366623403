"""Flows: graphs of members, edges and edge groups, and the consequences when a member ends."""
