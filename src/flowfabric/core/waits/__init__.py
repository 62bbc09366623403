"""Waits: suspensions, waitpoints, signals and the conditions that signals satisfy."""
