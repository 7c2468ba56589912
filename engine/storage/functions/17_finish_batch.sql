-- Finishes a batch whose members have all ended: keeps its totals, drops its counters, sends its
-- callbacks and, to a step that waits for it, the completion message. Once: false when members are open
-- or it is finished. Then no counter has another writer, so that only the batch is waited for.
-- A queue that was dropped meanwhile is made again: the batch's last member could not end otherwise.
CREATE FUNCTION {schema}.finish_batch(p_batch_id uuid)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    b {schema}.batches;
    v_message jsonb;
    v_queue text;
BEGIN
    WITH counted AS (
        SELECT coalesce(sum(c.completed), 0) AS completed, coalesce(sum(c.discarded), 0) AS discarded,
               coalesce(sum(c.dead_lettered), 0) AS dead_lettered
          FROM {schema}.batch_counters c WHERE c.batch_id = p_batch_id)
    UPDATE {schema}.batches
       SET completed_jobs = counted.completed, discarded_jobs = counted.discarded,
           dead_lettered_jobs = counted.dead_lettered, finished_at = clock_timestamp()
      FROM counted
     WHERE batch_id = p_batch_id AND open_counters = 0 AND finished_at IS NULL
    RETURNING batches.* INTO b;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.batch_counters c WHERE c.batch_id = p_batch_id;
    FOR v_message IN
        SELECT m.message
          FROM (VALUES (b.on_complete, true),
                       (b.on_success, b.completed_jobs = b.total_jobs),
                       (b.on_failure, b.completed_jobs < b.total_jobs),
                       (jsonb_build_object('queue', b.step_queue, 'wait', 0, 'body', jsonb_build_object(
                            'workflow_id', b.workflow_id, 'batch_id', b.batch_id)),
                        b.step_id IS NOT NULL AND b.resolved_at IS NULL)) AS m (message, is_due)
         WHERE m.is_due AND m.message IS NOT NULL LOOP
        v_queue := v_message ->> 'queue';
        IF to_regclass(format('pgmq.%I', pgmq.format_table_name(v_queue, 'q'))) IS NULL THEN
            PERFORM {schema}.make_queue(v_queue);
        END IF;
        PERFORM {schema}.send_job(v_queue, (v_message ->> 'body')::jsonb,
                                  (v_message ->> 'wait')::double precision,
                                  (v_message ->> 'not_before')::timestamptz);
    END LOOP;
    RETURN true;
END $$;
