-- Workers tell which kinds they know, so that `explain` can say that nobody knows one; none is known of those that take all.
ALTER TABLE ff.worker ADD COLUMN kinds TEXT[];
