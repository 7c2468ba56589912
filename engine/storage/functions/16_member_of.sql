-- Says which batch's member a message is: nulls when it is none's. A message may come from anywhere, so
-- what stands there is not trusted to be of any form.
CREATE FUNCTION {schema}.member_of(p_message jsonb, OUT batch_id uuid, OUT number integer)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_member jsonb := p_message -> 'batch';
BEGIN
    IF v_member ->> 0 ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' AND v_member ->> 1 ~ '^[0-9]{1,9}$' THEN
        batch_id := (v_member ->> 0)::uuid;
        number := (v_member ->> 1)::integer;
    END IF;
END $$;
