-- Flows, their edges and edge groups; children; cancel requests.

ALTER TABLE ff.execution ADD COLUMN flow_id UUID;
ALTER TABLE ff.execution ADD COLUMN member_name TEXT;
ALTER TABLE ff.execution ADD COLUMN parent_id UUID;
ALTER TABLE ff.execution ADD COLUMN has_children BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE ff.execution ADD COLUMN cancel_due_at TIMESTAMPTZ;
ALTER TABLE ff.execution ADD COLUMN cancel_request TEXT;
ALTER TABLE ff.event ADD COLUMN flow_id UUID;

CREATE INDEX execution_flow ON ff.execution (flow_id, state, id) WHERE flow_id IS NOT NULL;
CREATE INDEX execution_parent ON ff.execution (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX execution_cancel_due ON ff.execution (cancel_due_at) WHERE cancel_due_at IS NOT NULL AND ended_at IS NULL;
-- Members and parents go with their flow.
DROP INDEX ff.execution_purge;
CREATE INDEX execution_purge ON ff.execution (purge_at) WHERE purge_at IS NOT NULL AND flow_id IS NULL AND NOT has_children;
CREATE INDEX event_flow ON ff.event (flow_id, id) WHERE flow_id IS NOT NULL;

-- Its row is locked by whoever ends, blocks, releases or adds a member; that lock covers edges and groups too.
CREATE TABLE ff.flow (
    id UUID NOT NULL PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    -- True for the flow of an execution's children, which has the id of that execution.
    implicit BOOLEAN NOT NULL,
    tags JSONB NOT NULL,
    digest TEXT NOT NULL,
    sealed BOOLEAN NOT NULL,
    revision BIGINT NOT NULL CHECK (revision >= 0),
    open_members INTEGER NOT NULL CHECK (open_members >= 0),
    ended_badly INTEGER NOT NULL CHECK (ended_badly >= 0),
    created_at TIMESTAMPTZ NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ,
    finished TEXT CHECK (finished = ANY ('{completed,failed,cancelled}')),
    cancel_policy TEXT CHECK (cancel_policy = ANY ('{cancel_all,cancel_pending,flow_only}')),
    cancel_reason TEXT,
    cancel_source TEXT,
    cancel_principal TEXT,
    cancelled_at TIMESTAMPTZ,
    -- Set while members or siblings are left to be cancelled.
    sweep_at TIMESTAMPTZ,
    purge_at TIMESTAMPTZ,
    CHECK ((ended_at IS NULL) = (finished IS NULL)),
    CHECK (num_nulls(cancel_policy, cancel_reason, cancel_source, cancel_principal, cancelled_at) IN (0, 5))
) WITH (fillfactor = 50);
CREATE INDEX flow_by_namespace ON ff.flow (namespace, id);
CREATE INDEX flow_live ON ff.flow (namespace, id) WHERE finished IS NULL;
CREATE INDEX flow_sweep ON ff.flow (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX flow_purge ON ff.flow (purge_at) WHERE purge_at IS NOT NULL;

-- Every edge is written twice. There is room for that in its page, since the edges of a race are resolved all at once.
CREATE TABLE ff.edge (
    upstream_id UUID NOT NULL,
    downstream_id UUID NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id UUID NOT NULL,
    kind TEXT NOT NULL CHECK (kind = ANY ('{on_success,on_failure,on_completion}')),
    input TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state = ANY ('{open,satisfied,impossible}')),
    resolved_at TIMESTAMPTZ,
    PRIMARY KEY (upstream_id, downstream_id, seq),
    CHECK ((state = 'open') = (resolved_at IS NULL))
) WITH (fillfactor = 45);
CREATE INDEX edge_into ON ff.edge (downstream_id, seq, upstream_id);
CREATE INDEX edge_flow ON ff.edge (flow_id, upstream_id, downstream_id, seq);

-- The inbound edges of one member together. The counters can be counted again from the edges.
CREATE TABLE ff.edge_group (
    downstream_id UUID NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 0),
    flow_id UUID NOT NULL,
    join_kind TEXT NOT NULL CHECK (join_kind = ANY ('{all_of,any_of,quorum}')),
    k INTEGER CHECK (k >= 1),
    siblings TEXT NOT NULL CHECK (siblings = ANY ('{let_run,cancel_remaining}')),
    state TEXT NOT NULL CHECK (state = ANY ('{open,fired,impossible,closed}')),
    draft BOOLEAN NOT NULL,
    sweeping BOOLEAN NOT NULL,
    n INTEGER NOT NULL,
    satisfied INTEGER NOT NULL CHECK (satisfied >= 0),
    impossible INTEGER NOT NULL CHECK (impossible >= 0),
    PRIMARY KEY (downstream_id, seq),
    CHECK (satisfied + impossible <= n),
    CHECK ((join_kind = 'quorum') = (k IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX edge_group_flow ON ff.edge_group (flow_id, downstream_id, seq);
