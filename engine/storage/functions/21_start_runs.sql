-- Starts many runs of one class in a handful of statements; returns the ids of those that started.
-- A subject with an ongoing run is left out; of one that comes twice the first is taken. Rows go in in
-- the order given: the caller sorts by subject, so that two with the same subjects never deadlock.
CREATE FUNCTION {schema}.start_runs(
    p_workflow_ids uuid[], p_workflow_class text, p_digest text,
    p_subject_types text[], p_subject_ids text[], p_arguments text[],
    p_step_name text, p_queue text, p_wait double precision, p_not_before timestamptz,
    p_actor text, p_reason text, p_trace text)
RETURNS TABLE (workflow_id uuid, created_at timestamptz, step_id bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_at timestamptz := greatest(v_now + make_interval(secs => p_wait), p_not_before);
    v_sleeps_until timestamptz := {schema}.sleeps_until(v_at, v_now);
    v_started uuid[];
    v_step_ids bigint[];
    v_message_ids bigint[];
    v_addressees uuid[];
BEGIN
    WITH inserted AS (
        INSERT INTO {schema}.workflows
            (workflow_id, workflow_class, definition_digest, status, subject_type, subject_id, arguments,
             current_step, step_id, created_at, updated_at, sleeps_until)
        SELECT n.workflow_id, p_workflow_class, p_digest, 'ready', n.subject_type, n.subject_id,
               n.arguments::jsonb, p_step_name, nextval('{schema}.workflow_steps_step_id_seq'), v_now, v_now,
               v_sleeps_until
          FROM unnest(p_workflow_ids, p_subject_types, p_subject_ids, p_arguments)
               WITH ORDINALITY AS n (workflow_id, subject_type, subject_id, arguments, place)
         ORDER BY n.place
        ON CONFLICT DO NOTHING
        RETURNING workflow_id, step_id)
    SELECT array_agg(i.workflow_id), array_agg(i.step_id) INTO v_started, v_step_ids FROM inserted i;
    IF v_started IS NULL THEN
        RETURN;
    END IF;
    IF v_sleeps_until IS NULL THEN
        SELECT array_agg(m) INTO v_message_ids
          FROM pgmq.send_batch(p_queue, ARRAY(SELECT jsonb_build_object('workflow_id', id)
                                                FROM unnest(v_started) AS id), NULL::jsonb[], v_at) AS m;
        -- Which message is whose is read back: send_batch promises no order.
        EXECUTE format('SELECT array_agg(msg_id), array_agg((message ->> ''workflow_id'')::uuid)
                          FROM pgmq.%I WHERE msg_id = ANY ($1)', pgmq.format_table_name(p_queue, 'q'))
           INTO v_message_ids, v_addressees USING v_message_ids;
        PERFORM pg_notify('{channel}', p_queue);
    END IF;
    INSERT INTO {schema}.workflow_steps
        (step_id, workflow_id, step_name, attempt, status, queue, message_id, created_at, scheduled_at, send_at,
         trace)
    SELECT r.step_id, r.workflow_id, p_step_name, 1, 'scheduled', p_queue, m.message_id, v_now, v_at,
           v_sleeps_until, p_trace
      FROM unnest(v_started, v_step_ids) AS r (workflow_id, step_id)
      LEFT JOIN unnest(v_addressees, v_message_ids) AS m (workflow_id, message_id) USING (workflow_id);
    INSERT INTO {schema}.workflow_events
        (workflow_id, event, step_name, attempt, actor, reason, from_status, to_status, created_at)
    SELECT id, e.event, e.step_name, e.attempt, p_actor, e.reason, e.from_status, 'ready', v_now
      FROM unnest(v_started) AS id,
           (VALUES (1, 'started', NULL, NULL, p_reason, NULL),
                   (2, 'step_scheduled', p_step_name, 1, NULL, 'ready'))
               AS e (n, event, step_name, attempt, reason, from_status)
     ORDER BY id, e.n;
    RETURN QUERY SELECT r.workflow_id, v_now, r.step_id FROM unnest(v_started, v_step_ids) AS r (workflow_id, step_id);
END $$;
