"""The tools of the fault suites. Everything random in them comes from the seed of the run.

proxy     a TCP proxy in front of PostgreSQL that loses, delays or cuts what passes through it
clock     the clock of a host or of a server, moved forward and back
disk      a file system that is slow, full, or loses files
link      a link between an engine and its store on either backend that loses replies or breaks
ownership a program that writes down its runs and steps, to find runs that share an epoch
ledgers   records of what happened, which the engine does not write
"""
