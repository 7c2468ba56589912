-- Writes a run, its first attempt, their events and the step message. Says 'duplicate' when the
-- idempotency key is taken and 'running' when the subject has an ongoing run (workflow_id is that
-- run's then), without an error that would abort the caller's transaction. A row that vanishes
-- between the conflict and the look-up (its run ended) is met by trying again.
CREATE FUNCTION {schema}.start_run(
    p_workflow_id uuid, p_workflow_class text, p_digest text,
    p_subject_type text, p_subject_id text, p_arguments jsonb, p_idempotency_key text, p_rerun_of uuid,
    p_step_name text, p_queue text, p_wait double precision, p_not_before timestamptz,
    p_actor text, p_reason text, p_details jsonb, p_trace text)
RETURNS TABLE (verdict text, workflow_id uuid, created_at timestamptz, step_id bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_at timestamptz := greatest(v_now + make_interval(secs => p_wait), p_not_before);
    v_step_id bigint := nextval('{schema}.workflow_steps_step_id_seq');
    v_other uuid;
BEGIN
    FOR i IN 1..10 LOOP
        INSERT INTO {schema}.workflows
            (workflow_id, workflow_class, definition_digest, status, subject_type, subject_id, arguments,
             idempotency_key, current_step, step_id, rerun_of, created_at, updated_at, sleeps_until)
        VALUES
            (p_workflow_id, p_workflow_class, p_digest, 'ready', p_subject_type, p_subject_id, p_arguments,
             p_idempotency_key, p_step_name, v_step_id, p_rerun_of, v_now, v_now,
             {schema}.sleeps_until(v_at, v_now))
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM {schema}.schedule_step(v_step_id, p_workflow_id, p_step_name, p_queue, v_at, v_now, true, p_trace);
            INSERT INTO {schema}.workflow_events
                (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, details, created_at)
            VALUES
                (p_workflow_id, 'started', NULL, NULL, p_actor, p_reason, NULL, 'ready', p_details, v_now),
                (p_workflow_id, 'step_scheduled', p_step_name, 1, p_actor, NULL, 'ready', 'ready', NULL, v_now);
            RETURN QUERY SELECT 'started', p_workflow_id, v_now, v_step_id;
            RETURN;
        END IF;
        SELECT w.workflow_id INTO v_other FROM {schema}.workflows w
         WHERE w.workflow_class = p_workflow_class AND w.idempotency_key = p_idempotency_key;
        IF FOUND THEN
            RETURN QUERY SELECT 'duplicate', v_other, v_now, v_step_id;
            RETURN;
        END IF;
        SELECT w.workflow_id INTO v_other FROM {schema}.workflows w
         WHERE w.workflow_class = p_workflow_class AND w.ended_at IS NULL
           AND w.subject_type = p_subject_type AND w.subject_id = p_subject_id;
        IF FOUND THEN
            RETURN QUERY SELECT 'running', v_other, v_now, v_step_id;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'pgbus: a run of % could not be started: its conflicting run keeps vanishing', p_workflow_class;
END $$;
