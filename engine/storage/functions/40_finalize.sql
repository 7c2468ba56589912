-- Applies what became of an attempt: ends it, moves its run, writes the events, and schedules what
-- comes next, with its message. One statement is the whole transaction of a step without guards:
--   applied     done; the next attempt, if any, was sent
--   continued   done; the next attempt is in progress already, under the same message
--   declined    nothing done: p_continue was asked for a step that is not due (clocks differ); ask without
--   held, late  the run was paused meanwhile, or the attempt was taken away: see finalize_moved()
-- An attempt that is parked has no outcome: it has not ended. What it waits for is written next. With
-- p_takes_signals the end of the step consumes the signal it held. p_trace is for the attempt that comes
-- next; where none does, it stays with this one for what goes on later.
-- The last of p_events carries the run's change; those of the next attempt are step_scheduled and step_started.
-- The run is locked before the message is deleted: while a host's transaction keeps the run, the worker's
-- heartbeat must not wait for the message. With p_continue the message is not touched.
CREATE FUNCTION {schema}.finalize(
    p_workflow_id uuid, p_step_id bigint, p_queue text, p_message_id bigint, p_read_count integer,
    p_target text,
    p_attempt_status text, p_outcome text, p_output jsonb,
    p_error_class text, p_error_message text, p_error jsonb, p_reattempted_by text, p_held jsonb,
    p_next_step text, p_next_queue text, p_wait double precision, p_not_before timestamptz,
    p_continue boolean, p_worker text, p_revision text,
    p_events text[], p_reasons text[], p_details jsonb[], p_takes_signals boolean, p_trace text)
RETURNS TABLE (verdict text, step_id bigint, attempt integer, due_in double precision)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_at timestamptz := greatest(v_now + make_interval(secs => p_wait), p_not_before);
    v_next_id bigint;
    v_next_attempt integer;
    s {schema}.workflow_steps;
BEGIN
    IF p_continue AND v_at > v_now THEN
        RETURN QUERY SELECT 'declined', NULL::bigint, NULL::integer, NULL::double precision;
        RETURN;
    END IF;
    IF p_next_step IS NOT NULL THEN
        v_next_id := nextval('{schema}.workflow_steps_step_id_seq');
    END IF;
    UPDATE {schema}.workflows w
       SET status = p_target, current_step = coalesce(p_next_step, w.current_step),
           step_id = coalesce(v_next_id, w.step_id), sleeps_until = CASE WHEN v_next_id IS NOT NULL THEN {schema}.sleeps_until(v_at, v_now) END,
           updated_at = v_now,
           paused_at = CASE WHEN p_target = 'paused' THEN v_now END,
           ended_at = CASE WHEN p_target IN ('finished', 'cancelled') THEN v_now END,
           settled_error = CASE WHEN p_target IN ('paused', 'finished', 'cancelled')
                                THEN coalesce(p_error_class, '') END
     WHERE w.workflow_id = p_workflow_id AND w.status = 'performing' AND w.step_id = p_step_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM {schema}.finalize_moved(
            p_workflow_id, p_step_id, p_queue, p_message_id, p_target, p_attempt_status, p_outcome, p_output,
            p_error_class, p_error_message, p_error, p_reattempted_by, p_held, p_worker,
            p_events, p_reasons, p_details, p_takes_signals);
        RETURN;
    END IF;
    IF NOT p_continue THEN
        PERFORM pgmq.delete(p_queue, p_message_id);
    END IF;
    UPDATE {schema}.workflow_steps x
       SET status = p_attempt_status, outcome = p_outcome, finished_at = CASE WHEN p_outcome IS NOT NULL THEN v_now END,
           output = p_output, error_class = p_error_class, error_message = p_error_message, error = p_error,
           reattempted_by = p_reattempted_by,
           trace = CASE WHEN v_next_id IS NULL THEN coalesce(p_trace, x.trace) ELSE x.trace END
     WHERE x.step_id = p_step_id AND x.status = 'in_progress'
    RETURNING * INTO STRICT s;
    IF p_takes_signals AND (p_attempt_status IN ('completed', 'skipped') OR p_target = 'cancelled') THEN
        PERFORM {schema}.consume_signals(p_workflow_id, s.step_name);
    END IF;
    IF p_continue THEN
        INSERT INTO {schema}.workflow_steps
            (step_id, workflow_id, step_name, attempt, status, queue, message_id, read_count, created_at,
             scheduled_at, started_at, worker, revision, trace)
        VALUES
            (v_next_id, p_workflow_id, p_next_step, {schema}.next_attempt(p_workflow_id, p_next_step),
             'in_progress', p_queue, p_message_id, p_read_count, v_now, v_at, v_now, p_worker, p_revision, p_trace)
        RETURNING workflow_steps.attempt INTO v_next_attempt;
    ELSIF v_next_id IS NOT NULL THEN
        v_next_attempt := {schema}.schedule_step(
            v_next_id, p_workflow_id, p_next_step, p_next_queue, v_at, v_now, p_next_queue <> p_queue, p_trace);
    END IF;
    INSERT INTO {schema}.workflow_events
        (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, details, created_at)
    SELECT p_workflow_id, e.event,
           CASE WHEN e.event IN ('step_scheduled', 'step_started') THEN p_next_step ELSE s.step_name END,
           CASE WHEN e.event IN ('step_scheduled', 'step_started') THEN v_next_attempt ELSE s.attempt END,
           'system', e.reason,
           CASE WHEN e.event = 'step_started' THEN 'ready' ELSE 'performing' END,
           CASE WHEN e.event = 'step_scheduled' THEN 'ready'
                WHEN e.n = cardinality(p_events) THEN p_target ELSE 'performing' END,
           e.details, v_now
      FROM unnest(p_events, p_reasons, p_details) WITH ORDINALITY AS e (event, reason, details, n);
    RETURN QUERY SELECT CASE WHEN p_continue THEN 'continued' ELSE 'applied' END,
                        v_next_id, v_next_attempt,
                        CASE WHEN v_next_id IS NOT NULL
                             THEN extract(epoch FROM v_at - v_now)::double precision END;
END $$;
