-- The timer: sends the messages of attempts that come due within two seconds, at their very time.
-- Any number of callers at once share the work; the attempt's row lock is the only one taken. A queue
-- that was dropped meanwhile is made again: one step that cannot be sent would stop the timer for all.
CREATE FUNCTION {schema}.send_due(p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    s record;
    v_count integer := 0;
    -- In the statement itself the clock would be asked per row, and the index read to its end.
    v_until timestamptz := clock_timestamp() + interval '2 seconds';
BEGIN
    FOR s IN SELECT step_id, workflow_id, queue, scheduled_at FROM {schema}.workflow_steps
              WHERE send_at <= v_until
              ORDER BY send_at LIMIT p_limit FOR UPDATE SKIP LOCKED LOOP
        IF to_regclass(format('pgmq.%I', pgmq.format_table_name(s.queue, 'q'))) IS NULL THEN
            PERFORM {schema}.make_queue(s.queue);
        END IF;
        UPDATE {schema}.workflow_steps
           SET send_at = NULL, message_id = {schema}.send_step(s.workflow_id, s.queue, s.scheduled_at, true)
         WHERE step_id = s.step_id;
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
