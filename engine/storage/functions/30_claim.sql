-- Claims the attempt that a delivered step message stands for, and says what it found:
--   claimed   the attempt is in progress now, by this message (with p_wait also: it was already, by
--             this very delivery, whose answer was lost with its connection)
--   guarded   its class or step is not in p_unguarded: claim it in a transaction that asks the guards
--   locked    another transaction holds the run (only without p_wait): nothing was looked at
--   crashed   this very message, read once less, claimed the attempt: its worker died
--   waiting   its run waits: for a batch that may have finished, or a signal that may have come
--   (no row)  there is nothing to do for this message; it was deleted, unless it is in other hands:
--             a worker that froze after its read finds that the message was read again since
-- The attempt is found from the run's row, because one message follows a run through its steps; only
-- the message that the attempt names claims it. Another (a verb sent it anew meanwhile) may be gone from
-- the queue by now, or be of the wrong one, and a dead worker would not be noticed by it.
-- Lock order: run, message, attempt. The read that delivers a message holds its row already, so there a
-- run that is locked is not waited for; p_wait is for a transaction of its own.
CREATE FUNCTION {schema}.claim(
    p_workflow_id uuid, p_queue text, p_message_id bigint, p_read_count integer, p_wait boolean,
    p_unguarded text[],
    p_worker text, p_revision text)
RETURNS TABLE (
    verdict text, workflow_class text, subject_type text, subject_id text, arguments text,
    step_id bigint, step_name text, attempt integer, trace text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    r {schema}.workflows;
    s {schema}.workflow_steps;
    v_now timestamptz;
    v_read_count integer;
    v_verdict text := 'gone';
BEGIN
    IF p_wait THEN
        SELECT * INTO r FROM {schema}.lock_run(p_workflow_id);
        EXECUTE format('SELECT read_ct FROM pgmq.%I WHERE msg_id = $1', pgmq.format_table_name(p_queue, 'q'))
           INTO v_read_count USING p_message_id;
        IF v_read_count IS DISTINCT FROM p_read_count THEN
            RETURN;
        END IF;
    ELSE
        SELECT * INTO r FROM {schema}.workflows w WHERE w.workflow_id = p_workflow_id FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM {schema}.workflows w WHERE w.workflow_id = p_workflow_id) THEN
            RETURN QUERY SELECT 'locked', NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::integer, NULL;
            RETURN;
        END IF;
    END IF;
    SELECT * INTO s FROM {schema}.workflow_steps x WHERE x.step_id = r.step_id;
    v_now := clock_timestamp();
    IF r.status = 'ready' AND s.status = 'scheduled' AND s.message_id = p_message_id AND s.queue = p_queue THEN
        IF s.scheduled_at > v_now THEN
            PERFORM pgmq.set_vt(p_queue, p_message_id, s.scheduled_at);
            RETURN;
        ELSIF p_unguarded IS NOT NULL AND r.workflow_class || '#' || s.step_name <> ALL (p_unguarded) THEN
            v_verdict := 'guarded';
        ELSE
            v_verdict := 'claimed';
            UPDATE {schema}.workflows w SET status = 'performing', sleeps_until = NULL, updated_at = v_now
             WHERE w.workflow_id = p_workflow_id;
            UPDATE {schema}.workflow_steps x
               SET status = 'in_progress', started_at = v_now, worker = p_worker, revision = p_revision,
                   read_count = p_read_count
             WHERE x.step_id = s.step_id;
            INSERT INTO {schema}.workflow_events
                (workflow_id, event, step_name, attempt, actor, from_status, to_status, created_at)
            VALUES (p_workflow_id, 'step_started', s.step_name, s.attempt, 'system', 'ready', 'performing', v_now);
        END IF;
    ELSIF s.status = 'in_progress' AND s.message_id = p_message_id AND s.queue = p_queue
          AND r.status IN ('performing', 'paused') THEN
        IF p_wait AND s.read_count = p_read_count AND s.worker = p_worker THEN
            v_verdict := 'claimed';
        ELSIF s.read_count >= p_read_count THEN
            RETURN;
        ELSE
            v_verdict := 'crashed';
        END IF;
    ELSIF s.status = 'waiting' AND s.held IS NULL AND r.status IN ('waiting', 'paused') THEN
        v_verdict := 'waiting';
    END IF;
    IF v_verdict = 'gone' THEN
        PERFORM pgmq.delete(p_queue, p_message_id);
        RETURN;
    END IF;
    RETURN QUERY SELECT v_verdict, r.workflow_class, r.subject_type, r.subject_id, r.arguments::text,
                        s.step_id, s.step_name, s.attempt, s.trace;
END $$;
