-- Creates a queue unless it exists, and its reader: pgmq.read for one message, with the queue's name in
-- it, so that a session plans it once. pgmq.read plans at each call, which costs more than the reading.
-- Without a sort the plan walks the messages in order, however few there were when it was made.
-- The lock that pgmq.create takes keeps two callers from replacing the reader at once.
CREATE FUNCTION {schema}.make_queue(p_queue text)
RETURNS void LANGUAGE plpgsql AS $make$
BEGIN
    PERFORM pgmq.create(p_queue);
    EXECUTE format($reader$
        CREATE OR REPLACE FUNCTION {schema}.%1$I(p_visibility integer)
        RETURNS TABLE (msg_id bigint, read_ct integer, message jsonb)
        LANGUAGE plpgsql SET enable_sort = off AS $$
        #variable_conflict use_column
        BEGIN
            UPDATE pgmq.%2$I m
               SET vt = clock_timestamp() + make_interval(secs => p_visibility),
                   last_read_at = clock_timestamp(), read_ct = m.read_ct + 1
             WHERE m.msg_id = (SELECT v.msg_id FROM pgmq.%2$I v
                                WHERE v.vt <= clock_timestamp()
                                ORDER BY v.msg_id LIMIT 1 FOR UPDATE SKIP LOCKED)
            RETURNING m.msg_id, m.read_ct, m.message INTO msg_id, read_ct, message;
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        END $$
    $reader$, 'read_' || p_queue, pgmq.format_table_name(p_queue, 'q'));
END $make$;
