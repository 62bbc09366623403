-- The engine vacuums the tables that claims read. Autovacuum does it when no worker runs: soon, and without pauses.
ALTER TABLE ff.execution SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE ff.purged SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
