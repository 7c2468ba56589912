-- The rare half of finalize(): the run is not performing this attempt any more.
--   held        it was paused: the attempt ends (or waits), what follows waits in `held` for resume
--   applied     it was paused, and nothing is to be held (the body cancelled its run); or this very
--   continued   outcome was applied before, by a call whose answer was lost with its connection
--   late        the attempt was stalled or cancelled: only that is recorded
CREATE FUNCTION {schema}.finalize_moved(
    p_workflow_id uuid, p_step_id bigint, p_queue text, p_message_id bigint, p_target text,
    p_attempt_status text, p_outcome text, p_output jsonb,
    p_error_class text, p_error_message text, p_error jsonb, p_reattempted_by text, p_held jsonb, p_worker text,
    p_events text[], p_reasons text[], p_details jsonb[], p_takes_signals boolean)
RETURNS TABLE (verdict text, step_id bigint, attempt integer, due_in double precision)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_target text;
    v_told text[];
    r {schema}.workflows;
    s {schema}.workflow_steps;
    n {schema}.workflow_steps;
BEGIN
    SELECT * INTO r FROM {schema}.workflows w WHERE w.workflow_id = p_workflow_id FOR UPDATE;
    SELECT * INTO s FROM {schema}.workflow_steps x WHERE x.step_id = p_step_id;
    IF r.status = 'paused' AND r.step_id = p_step_id AND s.status = 'in_progress' THEN
        v_target := CASE WHEN p_held IS NULL THEN p_target ELSE 'paused' END;
        PERFORM pgmq.delete(p_queue, p_message_id);
        UPDATE {schema}.workflow_steps x
           SET status = p_attempt_status, outcome = p_outcome, output = p_output,
               finished_at = CASE WHEN p_outcome IS NOT NULL THEN v_now END,
               error_class = p_error_class, error_message = p_error_message, error = p_error,
               reattempted_by = p_reattempted_by, held = p_held
         WHERE x.step_id = p_step_id;
        IF p_takes_signals AND (p_attempt_status IN ('completed', 'skipped') OR v_target = 'cancelled') THEN
            PERFORM {schema}.consume_signals(p_workflow_id, s.step_name);
        END IF;
        UPDATE {schema}.workflows w
           SET status = v_target, updated_at = v_now,
               ended_at = CASE WHEN v_target IN ('finished', 'cancelled') THEN v_now END,
               paused_at = CASE WHEN v_target = 'paused' THEN w.paused_at END,
               settled_error = coalesce(p_error_class, '')
         WHERE w.workflow_id = p_workflow_id;
        INSERT INTO {schema}.workflow_events
            (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, details, created_at)
        SELECT p_workflow_id, e.event, s.step_name, s.attempt, 'system', e.reason, 'paused',
               CASE WHEN e.n = cardinality(p_events) THEN v_target ELSE 'paused' END, e.details, v_now
          FROM unnest(p_events, p_reasons, p_details) WITH ORDINALITY AS e (event, reason, details, n)
         WHERE e.event NOT IN ('step_scheduled', 'step_started')
           AND (p_held IS NULL OR e.event NOT IN ('paused', 'finished', 'cancelled', 'fan_out_opened'));
        RETURN QUERY SELECT CASE WHEN p_held IS NULL THEN 'applied' ELSE 'held' END,
                            NULL::bigint, NULL::integer, NULL::double precision;
        RETURN;
    END IF;
    SELECT * INTO n FROM {schema}.workflow_steps x WHERE x.step_id = r.step_id;
    IF n.step_id <> p_step_id AND n.status = 'in_progress'
       AND n.message_id = p_message_id AND n.queue = p_queue AND n.worker = p_worker THEN
        RETURN QUERY SELECT 'continued', n.step_id, n.attempt, 0::double precision;
        RETURN;
    END IF;
    v_told := ARRAY(SELECT e.event FROM {schema}.workflow_events e
                     WHERE e.workflow_id = p_workflow_id AND e.step_name = s.step_name
                       AND e.attempt = s.attempt AND e.actor = 'system');
    IF p_outcome IS NULL AND 'step_waiting' = ANY (v_told)
       OR s.status = p_attempt_status AND s.outcome IS NOT DISTINCT FROM p_outcome AND s.worker = p_worker
          AND s.error_class IS NOT DISTINCT FROM p_error_class AND p_events[1] = ANY (v_told) THEN
        RETURN QUERY SELECT CASE WHEN s.held IS NULL THEN 'applied' ELSE 'held' END,
                            NULL::bigint, NULL::integer, NULL::double precision;
        RETURN;
    END IF;
    IF r.workflow_id IS NOT NULL AND p_events[1] <> 'stall_detected'
       AND 'late_completion_ignored' <> ALL (v_told) THEN
        INSERT INTO {schema}.workflow_events
            (workflow_id, event, step_name, attempt, actor, from_status, to_status, details, created_at)
        VALUES (p_workflow_id, 'late_completion_ignored', s.step_name, s.attempt, 'system', r.status, r.status,
                jsonb_build_object('outcome', p_outcome), v_now);
    END IF;
    -- A stall found too late: the run has gone on, under this very message.
    IF n.step_id = p_step_id OR n.message_id IS DISTINCT FROM p_message_id OR n.queue <> p_queue
       OR n.status NOT IN ('scheduled', 'in_progress') THEN
        PERFORM pgmq.delete(p_queue, p_message_id);
    END IF;
    RETURN QUERY SELECT 'late', NULL::bigint, NULL::integer, NULL::double precision;
END $$;
