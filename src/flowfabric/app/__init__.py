"""The objects of a program: the app, its tasks and flows, and handles of submitted executions."""
