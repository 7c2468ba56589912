-- Finishes a batch whose members have all ended: keeps its totals, drops its counters, sends its
-- callbacks and, to a step that waits for it, the completion message. Once: false when members are open
-- or it is finished.
-- A host's transaction may keep the batch locked for long, and no worker waits for it more than a
-- second or two: false then, too, and the batch is left to a member that ends later, or to the sweep.
-- Open counters are looked for in a statement of its own, after the lock: of two whose counters reach
-- zero at once the second then sees the first's. The newest counter is looked at first, as it tends to
-- end last. With none open none has a writer, so that only the batch is waited for.
-- A queue that was dropped meanwhile is made again: the batch's last member could not end otherwise.
CREATE FUNCTION {schema}.finish_batch(p_batch_id uuid)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    b {schema}.batches;
    v_message jsonb;
    v_queue text;
BEGIN
    BEGIN
        PERFORM FROM {schema}.batches x WHERE x.batch_id = p_batch_id AND x.finished_at IS NULL FOR UPDATE;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM {schema}.batch_counters c WHERE c.batch_id = p_batch_id AND c.open > 0
      ORDER BY c.counter DESC LIMIT 1;
    IF FOUND THEN
        RETURN false;
    END IF;
    WITH dropped AS (
        DELETE FROM {schema}.batch_counters c WHERE c.batch_id = p_batch_id
        RETURNING c.completed, c.discarded, c.dead_lettered)
    UPDATE {schema}.batches x
       SET completed_jobs = counted.completed, discarded_jobs = counted.discarded,
           dead_lettered_jobs = counted.dead_lettered, finished_at = clock_timestamp()
      FROM (SELECT coalesce(sum(completed), 0) AS completed, coalesce(sum(discarded), 0) AS discarded,
                   coalesce(sum(dead_lettered), 0) AS dead_lettered FROM dropped) AS counted
     WHERE x.batch_id = p_batch_id
    RETURNING x.* INTO b;
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
