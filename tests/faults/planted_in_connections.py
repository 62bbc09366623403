"""Faults planted in the repeats of calls and in the pool of connections."""

from __future__ import annotations

from tests.faults.planted_fault import Edit, PlantedFault

REPEATS, BATCHER, POOL = "engine/repeats.py", "engine/batcher.py", "backends/postgres/pool.py"
CALLS, CONNECTIONS = "../conformance/test_repeats.py", "../adversity/test_connections.py"
UNSAFE = f"{CALLS}::test_call_that_is_not_safe_to_repeat_is_left_to_the_caller"
USERS = "../end_to_end/client/test_repeats.py"
VACUUM = "../adversity/test_vacuum.py"
STORE = "backends/postgres/store.py"
SERVERS, HOSTS = "../adversity/test_unusable_servers.py", "../adversity/test_vanished_hosts.py"
TAKEOVER = f"{HOSTS}::test_another_worker_takes_over_from_a_host_that_vanished_inside_a_transaction"
WORKING = f"{HOSTS}::test_session_that_copies_or_waits_for_a_lock_is_not_ended"
BLACKOUT = (
    "../adversity/test_blackouts.py::test_worker_exits_in_time_if_it_gets_sigterm_while_the_store_does_not_respond"
)

PLANTED_IN_CONNECTIONS = (
    PlantedFault(
        "lost reply is not repeated",
        f"{CALLS}::test_submit_whose_reply_is_lost_stores_one_execution[sqlite]",
        Edit(REPEATS, "if not self._can_repeat(error):", "if True:"),
    ),
    PlantedFault(
        "calls are repeated without a limit",
        f"{CALLS}::test_calls_that_wait_behind_a_lost_batch_are_not_delayed_by_every_batch[sqlite]",
        Edit(BATCHER, "if error.code in LOST_CODES:", "if False:"),
    ),
    PlantedFault(
        "statement timeout is repeated",
        f"{CALLS}::test_other_errors_of_the_store_are_not_repeated[sqlite-statement_timeout]",
        Edit(REPEATS, 'frozenset({"connection_lost",', 'frozenset({"statement_timeout", "connection_lost",'),
    ),
    PlantedFault(
        "error does not carry the id of the call",
        f"{CALLS}::test_error_carries_the_id_with_which_the_call_can_be_repeated[sqlite-reply-send]",
        Edit(REPEATS, "**{**error.fields, **ids}", "**error.fields"),
    ),
    PlantedFault(
        "repeated task submit gets a new id",
        f"{USERS}::test_submit_repeated_with_the_id_of_its_error_stores_one_execution[sqlite-reply]",
        Edit("app/task.py", "            id=options.id,\n", ""),
    ),
    PlantedFault(
        "lost claim is repeated",
        f"{CALLS}::test_claim_whose_reply_is_lost_is_left_to_the_caller[postgres]",
        Edit("ops/leases/claim.py", "single_statement=True, can_repeat=False", "single_statement=True"),
    ),
    PlantedFault(
        "lost claim by id is repeated",
        f"{UNSAFE}[sqlite-claim by id]",
        Edit("ops/leases/claim.py", "@operation(can_repeat=False)", "@operation()"),
    ),
    PlantedFault(
        "replay of any generation is repeated",
        f"{UNSAFE}[sqlite-replay of any generation]",
        Edit("ops/operator/replay.py", "@operation(can_repeat=_names_a_generation)", "@operation()"),
    ),
    PlantedFault(
        "revocation of any lease is repeated",
        f"{UNSAFE}[sqlite-revocation of any lease]",
        Edit("ops/leases/reclaim.py", "@operation(can_repeat=_names_a_lease)", "@operation()"),
    ),
    PlantedFault(
        "resume of any suspension is repeated",
        f"{UNSAFE}[sqlite-resume of any suspension]",
        Edit("ops/waits/resume.py", "@operation(can_repeat=_names_a_suspension)", "@operation()"),
    ),
    PlantedFault(
        "user code is repeated after it has run",
        f"{CALLS}::test_user_code_is_not_repeated_after_it_has_run[postgres]",
        Edit("ops/leases/checkpoint.py", "runs_user_code=True, can_repeat=False", "runs_user_code=True"),
    ),
    PlantedFault(
        "caller does not wait for a connection of the pool",
        f"{CONNECTIONS}::test_calls_wait_for_a_connection_of_the_pool_if_the_server_has_no_free_one",
        Edit(POOL, "                if not self._connections:\n                    raise\n", "                raise\n"),
        Edit(REPEATS, ', "too_many_connections"})', "})"),
    ),
    PlantedFault(
        "withheld capacity is lost",
        f"{CONNECTIONS}::test_pool_opens_more_connections_when_the_server_has_free_ones_again",
        Edit(POOL, "        if self._withheld_capacity and not self._is_closed:\n", "        if False:\n"),
    ),
    PlantedFault(
        "replica is accepted",
        f"{SERVERS}::test_connect_refuses_a_replica",
        Edit(STORE, 'if server["is_replica"]:', "if False:"),
    ),
    PlantedFault(
        "other encoding is accepted",
        f"{SERVERS}::test_connect_refuses_a_database_whose_encoding_is_not_utf8",
        Edit(STORE, 'if (encoding := server["encoding"]) != "UTF8":', 'if (encoding := server["encoding"]) == "":'),
    ),
    PlantedFault(
        "pooler that drops settings is accepted",
        f"{SERVERS}::test_connect_refuses_a_pooler_that_was_not_declared[drops settings]",
        Edit(STORE, "if not settings.pooler and server", "if False and server"),
    ),
    PlantedFault(
        "pooler that refuses settings looks like a lost connection",
        f"{SERVERS}::test_connect_refuses_a_pooler_that_was_not_declared[refuses settings]",
        Edit("backends/postgres/errors.py", 'and "startup parameter" in str(error)', "and not str(error)"),
    ),
    PlantedFault(
        "hidden rows are accepted",
        f"{SERVERS}::test_row_level_security_on_the_migrations_does_not_look_like_an_empty_schema",
        Edit(STORE, "        await _check_row_security(connection, settings.schema)\n", ""),
    ),
    PlantedFault(
        "restrictive policy is accepted",
        f"{SERVERS}::test_connect_refuses_row_level_security_that_hides_rows[restrictive policy]",
        Edit(STORE, "p.permissive = 'RESTRICTIVE'", "p.permissive = 'NEVER'"),
    ),
    PlantedFault(
        "session requests no keepalives",
        f"{HOSTS}::test_session_requests_keepalives_on_both_sides",
        Edit(STORE, "{**_SESSION, **SERVER_KEEPALIVES,", "{**_SESSION,"),
    ),
    PlantedFault(
        "socket has no keepalives",
        f"{HOSTS}::test_session_requests_keepalives_on_both_sides",
        Edit("backends/postgres/keepalive.py", "        _watch(transport)\n", "        pass\n"),
    ),
    PlantedFault(
        "session may be silent inside a transaction for a minute",
        f"{HOSTS}::test_session_requests_keepalives_on_both_sides",
        Edit(STORE, "int(idle_limit_s(settings.statement_timeout_s) * 1000)", "60_000"),
    ),
    PlantedFault(
        "session may be silent between two statements without a limit",
        f"{TAKEOVER}[delay]",
        Edit(
            STORE,
            '        "idle_in_transaction_session_timeout": int(idle_limit_s',
            '        "lock_timeout": int(idle_limit_s',
        ),
    ),
    PlantedFault(
        "cancel waits for a silent session without a limit",
        f"{HOSTS}::test_operator_can_cancel_the_execution_of_a_vanished_host",
        Edit(
            STORE,
            '        "idle_in_transaction_session_timeout": int(idle_limit_s',
            '        "lock_timeout": int(idle_limit_s',
        ),
    ),
    PlantedFault(
        "several processes vacuum at the same time",
        f"{VACUUM}::test_only_one_process_vacuums_at_a_time",
        Edit("backends/postgres/vacuum.py", "if await connection.fetchval(_LOCK, schema):", "if True:"),
    ),
    PlantedFault(
        "role that may not vacuum is not noticed",
        f"{VACUUM}::test_role_that_may_not_vacuum_is_reported",
        Edit("backends/postgres/vacuum.py", "if not await _may_vacuum(connection, schema):", "if False:"),
    ),
    PlantedFault(
        "claims do not count towards a vacuum",
        f"{VACUUM}::test_claims_start_a_vacuum_in_the_background",
        Edit("engine/claims.py", "context.vacuum.claims_left -= len(leases)", "pass"),
    ),
    PlantedFault(
        "lock of a vacuum is that of a session which a pooler shares",
        f"{VACUUM}::test_store_behind_a_pooler_leaves_it_to_autovacuum",
        Edit(
            STORE,
            "(None if self._settings.pooler else self._location.url)\n        return url",
            "self._location.url\n        return url",
        ),
    ),
    PlantedFault(
        "session that stopped inside a statement is not ended",
        f"{TAKEOVER}[fail]",
        Edit("reconcilers/loop.py", "            await self._end_stalled_sessions()\n", "            pass\n"),
    ),
    PlantedFault(
        "session that stopped inside a statement does not count as active",
        f"{TAKEOVER}[step.tx]",
        Edit(STORE, "AND a.state = 'active'", "AND a.state = 'idle in transaction'"),
    ),
    PlantedFault(
        "session is ended as soon as it waits for the rest of a statement",
        f"{HOSTS}::test_session_is_ended_only_after_it_has_stopped_inside_a_statement_for_long",
        Edit(STORE, "make_interval(secs => $1)", "make_interval(secs => $1 * 0)"),
    ),
    PlantedFault(
        "session that copies is ended",
        WORKING,
        Edit(STORE, "    AND a.query NOT ILIKE 'COPY%'\n", ""),
    ),
    PlantedFault(
        "session that waits for a lock is ended",
        WORKING,
        Edit(STORE, "    AND a.wait_event = 'ClientRead'\n", ""),
    ),
    PlantedFault(
        "user's session requests no keepalives",
        f"{HOSTS}::test_session_requests_keepalives_on_both_sides",
        Edit("backends/postgres/user_connections.py", "            **SERVER_KEEPALIVES,\n", ""),
    ),
    PlantedFault(
        "transaction behind a pooler has no limits",
        f"{HOSTS}::test_session_behind_a_pooler_bounds_each_transaction",
        Edit(STORE, 'local_settings if settings.pooler else ""', '""'),
    ),
    PlantedFault(
        "cancelled transaction waits for its rollback",
        f"{HOSTS}::test_cancelled_call_ends_immediately_while_the_server_does_not_respond",
        Edit(
            POOL,
            "        except Exception:\n            await self.execute",
            "        except BaseException:\n            await self.execute",
        ),
    ),
    PlantedFault(
        "shutdown waits for the store",
        f"{BLACKOUT}[postgres-app.run]",
        Edit("worker/worker.py", "await self._deadline.limit(drain(", "await (drain("),
    ),
    PlantedFault(
        "engine waits for its connections when it closes",
        f"{BLACKOUT}[postgres-app.run]",
        Edit("app/app.py", "if ready is not None and timeout_s is not None:", "if False:"),
    ),
    PlantedFault(
        "engine waits for a locked file when it closes",
        f"{BLACKOUT}[sqlite-app.run]",
        Edit("backends/sqlite/store.py", "await asyncio.wait([waiting], timeout=timeout_s)", "await waiting"),
    ),
)
