-- Waitpoints know the generation that made them, so that a later one does not take their signals for its own.
ALTER TABLE ff.waitpoint ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
