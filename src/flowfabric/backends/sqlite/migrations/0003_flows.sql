-- Flows, their edges and edge groups; children; cancel requests.

ALTER TABLE ff.execution ADD COLUMN flow_id TEXT;
ALTER TABLE ff.execution ADD COLUMN member_name TEXT;
ALTER TABLE ff.execution ADD COLUMN parent_id TEXT;
ALTER TABLE ff.execution ADD COLUMN has_children INTEGER NOT NULL DEFAULT FALSE;
ALTER TABLE ff.execution ADD COLUMN cancel_due_at INTEGER;
ALTER TABLE ff.execution ADD COLUMN cancel_request TEXT;
ALTER TABLE ff.event ADD COLUMN flow_id TEXT;

CREATE INDEX ff_execution_flow ON ff.execution (flow_id, state, id) WHERE flow_id IS NOT NULL;
CREATE INDEX ff_execution_parent ON ff.execution (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX ff_execution_cancel_due ON ff.execution (cancel_due_at) WHERE cancel_due_at IS NOT NULL AND ended_at IS NULL;
-- Members and parents go with their flow.
DROP INDEX ff.execution_purge;
CREATE INDEX ff_execution_purge ON ff.execution (purge_at) WHERE purge_at IS NOT NULL AND flow_id IS NULL AND NOT has_children;
CREATE INDEX ff_event_flow ON ff.event (flow_id, id) WHERE flow_id IS NOT NULL;

-- Its row is locked by whoever ends, blocks, releases or adds a member; that lock covers edges and groups too.
CREATE TABLE ff.flow (
    id TEXT NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- True for the flow of an execution's children, which has the id of that execution.
    implicit INTEGER NOT NULL,
    tags TEXT NOT NULL,
    digest TEXT NOT NULL,
    sealed INTEGER NOT NULL,
    revision INTEGER NOT NULL CHECK (revision >= 0),
    open_members INTEGER NOT NULL CHECK (open_members >= 0),
    ended_badly INTEGER NOT NULL CHECK (ended_badly >= 0),
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    ended_at INTEGER,
    finished TEXT CHECK (finished IN ('completed', 'failed', 'cancelled')),
    cancel_policy TEXT CHECK (cancel_policy IN ('cancel_all', 'cancel_pending', 'flow_only')),
    cancel_reason TEXT,
    cancel_source TEXT,
    cancel_principal TEXT,
    cancelled_at INTEGER,
    -- Set while members or siblings are left to be cancelled.
    sweep_at INTEGER,
    purge_at INTEGER,
    CHECK ((ended_at IS NULL) = (finished IS NULL)),
    CHECK ((cancel_policy IS NULL) + (cancel_reason IS NULL) + (cancel_source IS NULL) + (cancel_principal IS NULL)
        + (cancelled_at IS NULL) IN (0, 5))
) STRICT;
CREATE INDEX ff_flow_by_namespace ON ff.flow (namespace, id);
CREATE INDEX ff_flow_live ON ff.flow (namespace, id) WHERE finished IS NULL;
CREATE INDEX ff_flow_sweep ON ff.flow (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX ff_flow_purge ON ff.flow (purge_at) WHERE purge_at IS NOT NULL;

CREATE TABLE ff.edge (
    upstream_id TEXT NOT NULL,
    downstream_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('on_success', 'on_failure', 'on_completion')),
    input TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'satisfied', 'impossible')),
    resolved_at INTEGER,
    PRIMARY KEY (upstream_id, downstream_id, seq),
    CHECK ((state = 'open') = (resolved_at IS NULL))
) STRICT;
CREATE INDEX ff_edge_into ON ff.edge (downstream_id, seq, upstream_id);
CREATE INDEX ff_edge_flow ON ff.edge (flow_id, upstream_id, downstream_id, seq);

-- The inbound edges of one member together. The counters can be counted again from the edges.
CREATE TABLE ff.edge_group (
    downstream_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id TEXT NOT NULL,
    join_kind TEXT NOT NULL CHECK (join_kind IN ('all_of', 'any_of', 'quorum')),
    k INTEGER CHECK (k >= 1),
    siblings TEXT NOT NULL CHECK (siblings IN ('let_run', 'cancel_remaining')),
    state TEXT NOT NULL CHECK (state IN ('open', 'fired', 'impossible', 'closed')),
    draft INTEGER NOT NULL,
    sweeping INTEGER NOT NULL,
    n INTEGER NOT NULL,
    satisfied INTEGER NOT NULL CHECK (satisfied >= 0),
    impossible INTEGER NOT NULL CHECK (impossible >= 0),
    PRIMARY KEY (downstream_id, seq),
    CHECK (satisfied + impossible <= n),
    CHECK ((join_kind = 'quorum') = (k IS NOT NULL))
) STRICT;
CREATE INDEX ff_edge_group_flow ON ff.edge_group (flow_id, downstream_id, seq);
